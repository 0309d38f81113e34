"""OpenAI's API: the routes and bodies that its clients know."""
