"""`pydantic-ai-batch demo`: support tickets, triaged by an agent whose requests travel in batches."""
