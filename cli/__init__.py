"""The command line: ``ggfw VERB``. One module per verb or family of verbs; nothing else imports them."""

from __future__ import annotations

import os
import sys


def start() -> int:
    """Run the command line and return its exit code; the entry point of the ``ggfw`` script.

    An interrupt while the modules are still being imported ends it like any later one, without a traceback.
    """
    # OpenBLAS's threads, which wait for work that most verbs never have, would spin for 25 ms before they sleep.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    try:
        from ggfw.cli.main import main
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():  # behind the ^C
            sys.stderr.write("\n")
        return 130
    return main()
