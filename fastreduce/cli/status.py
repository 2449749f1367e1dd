"""How the commands say that they failed: exit statuses, and errors in words."""

FAILED = 1
INTERRUPTED = 130  # What a shell reports for a process that SIGINT ended.


def in_words(error: Exception) -> str:
    """The message without the errno of a system error, which tells most readers nothing."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
