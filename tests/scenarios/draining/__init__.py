"""An nsqd or a topic drains: publishers go elsewhere, consumers empty it."""
