"""How it looks: rich renderables for the terminal."""
