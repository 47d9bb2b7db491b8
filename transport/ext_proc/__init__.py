"""Envoy's external processing protocol: codec, body budget, and the state machine of one exchange.

A service writes a `processor.Processor`, which says what a request means and what is to be done with it.
`exchange.Exchange` holds the protocol: order of the messages, body modes, held bodies, chunks, trailers, the
end. `handler.ProcessHandler` joins an exchange to a gRPC call.
"""
