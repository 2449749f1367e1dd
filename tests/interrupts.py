"""Ctrl-C at a chosen moment of a call."""

import sys


class _CtrlC:
    """For sys.settrace: raises KeyboardInterrupt at the n-th moment."""

    def __init__(self, number, is_moment):
        self._left, self._is_moment, self.where = number, is_moment, None

    def __call__(self, frame, event, _):
        if self._is_moment(frame, event):
            self._left -= 1
            if self._left == 0:
                code = frame.f_code
                self.where = f"{code.co_filename}:{frame.f_lineno}, {code.co_name}, {event}"
                raise KeyboardInterrupt
        return self


def interrupted(call, number, is_moment):
    """Where the call was interrupted: at the n-th moment of those for which ``is_moment(frame,
    event)`` is true. None if the call has ended before it."""
    ctrl_c = _CtrlC(number, is_moment)
    sys.settrace(ctrl_c)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return ctrl_c.where
