"""webop and Kopf take over each other's objects: the same handlers and state, no call twice."""
