"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["available_processors"]

_CGROUP = Path("/sys/fs/cgroup")


def available_processors(cgroup: Path = _CGROUP) -> int:
    """The processors of this process's affinity mask, or fewer where a container's quota allows less.

    Args:
        cgroup: where the control groups are mounted.

    Returns:
        At least 1. A quota of 2.5 processors counts as 3: ggml's threads wait for each other at every node, and a
        thread that the quota stops now and then costs less than half a processor unused.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not a Linux
        count = os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Processors that the control group grants, from version 2's `cpu.max` or version 1's pair of files."""
    try:
        limit, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii")
        period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii")
        return None if int(limit) <= 0 else int(limit) / int(period)
    except (OSError, ValueError):
        return None
