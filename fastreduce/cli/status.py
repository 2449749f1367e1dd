"""Exit statuses of the commands."""

FAILED = 1
INTERRUPTED = 130  # What a shell reports for a process that SIGINT ended.
