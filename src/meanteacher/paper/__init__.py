"""The paper as data and as commands: its recipes, the layout of its tables and figures, running and rendering them."""
