"""`python -m ptn_runtime` is the command `ptn`."""

import sys

from ptn_runtime.cli import main

sys.exit(main())
