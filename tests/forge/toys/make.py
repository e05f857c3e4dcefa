from toys.phases import toy

PHASE = toy((0, 0))
