"""A real federation on Flower: the same algorithms, visits and rounds, with the data at the nodes.

`server.app` and `client.app` are what a Flower app names; `docs/deploy.md` takes a reader there.
"""
