from server_toys import toy

PHASE = toy((1, 3))
