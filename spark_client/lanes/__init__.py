"""How frames travel, from the server and to it; the rooms of ``lanes`` are its modules, ``contract`` the first."""
