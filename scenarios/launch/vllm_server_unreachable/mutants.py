import time

import requests

from mutants import failing, replaces

CHECK = "trl.generation.vllm_client.VLLMClient.check_server"


def is_up(client):
    try:
        return requests.get(f"{client.base_url}/health", timeout=60).status_code == 200
    except requests.RequestException:
        return False


@replaces("absent", CHECK, only="test_proxy_answers_for_it")
def looks_at_the_limit_whatever_answers(client, total_timeout=0.0, retry_interval=2.0):
    begun = time.monotonic()
    while not is_up(client):
        if time.monotonic() - begun >= total_timeout:
            raise requests.ConnectionError("not up in time")
        time.sleep(0.1)


replaces("changed", CHECK, only="test_nobody_listens")(failing(RuntimeError("no route to host")))


@replaces("regressed", CHECK, only="test_server_that_comes_up_late")
def asks_once(client, total_timeout=0.0, retry_interval=2.0):
    if not is_up(client):
        raise requests.ConnectionError("not up at once")


@replaces("regressed", "requests.utils.should_bypass_proxies", only="test_no_proxy_names_the_host")
def asks_the_proxy_for_every_host(url, no_proxy=None):
    return False
