"""Which program serves a call: the documented defaults, what was measured here, and the choice.

`choose` decides, `build` verifies the program and hands it to the extension, `explain` shows all
candidates with their times, `tune` measures this machine into a `table`.
"""
