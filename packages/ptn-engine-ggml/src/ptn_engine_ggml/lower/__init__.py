"""One small Python function per operator: static node in, calls on the native builder out.

`registry.py` holds the table and answers what runs on which device; `common.py` what several families use; every
other module is an operator family under the stem that it has everywhere in the project.
"""
