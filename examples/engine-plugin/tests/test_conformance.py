import subprocess
import sys


def test_conformance() -> None:
    suite = [sys.executable, "-m", "pytest", "-q", "--pyargs", "ptn_runtime.conformance", "--ptn-engine", "fused"]
    subprocess.run(suite, check=True)
