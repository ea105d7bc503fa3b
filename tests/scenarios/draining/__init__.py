"""An nsqd or a topic drains: publishers use other nsqds, consumers empty it."""
