"""Conversations: a chat template over messages, tools and documents, in a sandbox with a budget."""
