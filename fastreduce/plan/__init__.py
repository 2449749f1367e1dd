"""Which program runs a call: the documented defaults, the measured times, and the choice.

`choose` decides, `build` verifies the program and hands it to the extension, `explain` shows all
`candidates` with their times, `tune` measures this machine into a `table`.
"""
