"""What the server of `local_pool` loads before it forks: the simulator, and the fingerprint of the
code that it loaded, for which each cell would otherwise read all sources.
"""

from __future__ import annotations

from simulations.cells import fingerprint

fingerprint()
