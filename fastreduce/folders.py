"""The user's folders, for what is kept from one run to the next."""

import os
from pathlib import Path


def cache() -> Path:
    """The folder for files that can be made or fetched again."""
    return _folder("user_cache_path", "XDG_CACHE_HOME", ".cache")


def data() -> Path:
    """The folder for files that cost the user time, such as measurements."""
    return _folder("user_data_path", "XDG_DATA_HOME", ".local/share")


def _folder(kind: str, variable: str, default: str) -> Path:
    try:
        try:
            import platformdirs
        except ImportError:  # installed without its dependencies
            return Path(os.environ.get(variable) or Path.home() / default, "fastreduce")
        return Path(getattr(platformdirs, kind)("fastreduce"))
    except RuntimeError as error:  # as in a container, for a user whom it does not know
        raise FileNotFoundError(
            f"this user has no home folder; set HOME or {variable} to a folder"
        ) from error
