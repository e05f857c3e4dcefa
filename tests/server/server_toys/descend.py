from server_toys import toy

PHASE = toy((0, 0))
