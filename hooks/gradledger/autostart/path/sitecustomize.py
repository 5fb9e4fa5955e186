"""Arms the hooks in one Python process, then makes room for the ``sitecustomize`` it hides.

Any Python that the command starts reads this file, an ancient one too: keep its syntax plain.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_ours = sys.modules[__name__]

if sys.version_info >= (3, 7):  # noqa: UP036
    try:
        import gradledger_autostart  # type: ignore[import-not-found]

        gradledger_autostart.arm()
    except Exception as error:
        try:  # noqa: SIM105 (a program may have no standard error)
            sys.stderr.write("gradledger: not started ({!r})\n".format(error))  # noqa: UP032
        except Exception:  # nosec B110
            pass

# From here on the program sees its own sys.path; children get ours again, from PYTHONPATH.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
del sys.modules[__name__]
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as error:
    if getattr(error, "name", __name__) != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, _ours)
