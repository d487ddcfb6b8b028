"""How long the rules wait, and for how long a disturbance excuses what is wrong: in seconds."""

SETTLING = 100.0  # in which dead peers are forgotten, and silent watches given up
SETTLING_SOON = 30.0  # if there are none of these
LAG = 0.2  # until an event has come
LATENESS = 6.0  # for the patches of the object, besides its other handlers
PROMPTNESS = 3.0  # for the next attempt of a handler, besides the other handlers
NOTICE = 3.0  # until an operator has noticed another one
SILENCE = 75.0  # about, until a watch that is mute is given up
RECOVERY = 10.0  # after a disturbance, until attempts, timers and renewals come in time again
AFTERMATH = 25.0  # after a disturbance, in which a process may still suffer from it
