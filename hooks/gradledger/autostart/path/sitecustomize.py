"""Installs the import hook in a Python process, then runs the ``sitecustomize`` that it shadows.

Every Python that the command starts reads this file, even a very old one: use plain syntax.
"""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_this_module = sys.modules[__name__]

if sys.version_info >= (3, 7):  # noqa: UP036
    try:
        import gradledger_autostart  # type: ignore[import-not-found]

        gradledger_autostart.install()
    except Exception as error:
        try:  # noqa: SIM105 (a program may have no standard error)
            sys.stderr.write("gradledger: not started ({!r})\n".format(error))  # noqa: UP032
        except Exception:  # nosec B110
            pass

# Restore the sys.path of the program. Child processes get this folder again, from PYTHONPATH.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _folder]
del sys.modules[__name__]
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as error:
    if getattr(error, "name", __name__) != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, _this_module)
