"""Has Arrow's allocator return freed pages to the system at once. Imported for its effect.

mimalloc keeps them for a while, so that merges of one large key, one after the other, took 200 MiB of resident memory
and take 120 without that, in the same time. The frames that a client sends are not in its memory.

mimalloc reads its settings when Arrow is loaded: only the command line imports this, before Arrow. A value that the
user has set stays.
"""

import os

os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
