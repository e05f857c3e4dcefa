from toys.phases import toy

PHASE = toy((1, 3))
