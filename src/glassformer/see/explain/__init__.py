"""Why a model said something: measured by intervening, answered in a few sentences, and checked."""
