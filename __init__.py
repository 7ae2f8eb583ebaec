"""Makes the repository root look like a package, as `openenv push` requires. Import `kernel_env` instead.

In a script beside a clone that is called kernel_env this is what Python finds first; it then is the package.
"""

from pathlib import Path as _Path

if __name__ == "kernel_env":
    __file__ = str(_Path(__file__).parent / "kernel_env" / "__init__.py")
    __path__ = [str(_Path(__file__).parent)]
    exec(compile(_Path(__file__).read_text(encoding="utf-8"), __file__, "exec"))
