import asyncio

from mutants import broken, replaces


@broken(only="-raises")
async def no_limit(sender, weights, seconds):
    await sender.async_send_weights(weights)


@broken(only="-hangs")
async def limit_of_the_event_loop(sender, weights, seconds):
    """verl's wait holds up the loop that would end it."""
    await asyncio.wait_for(sender.async_send_weights(weights), seconds)


@replaces("absent", "pytest_rlregress.scenarios.weight_sync.transfers.sender", only="never-came")
def verl_with_a_limit(original, handle):
    """As https://github.com/verl-project/verl/pull/7366 has one."""
    import zmq

    made = original(handle)
    made.zmq_context = zmq.Context()
    made.zmq_context.setsockopt(zmq.SNDTIMEO, 1000)
    made.zmq_context.setsockopt(zmq.RCVTIMEO, 1000)
    return made


# A sender that waits for nobody.
replaces("changed", "pytest_rlregress.scenarios.weight_sync.transfers.send", only="never-came")(lambda handle: None)
