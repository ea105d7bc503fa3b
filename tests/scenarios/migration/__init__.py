"""A first start of nsqd on the data path of Go's nsqd."""
