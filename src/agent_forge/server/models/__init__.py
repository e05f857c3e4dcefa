"""ModelPool behind the OpenAI API: loading, the running batch, the routes."""
