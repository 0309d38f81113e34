"""The bridge: models that transformers computes, run and watched as any other."""
