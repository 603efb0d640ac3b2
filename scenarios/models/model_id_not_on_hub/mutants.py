from mutants import broken, replaces
from pytest_rlregress.remedies.models import check_model_id
from pytest_rlregress.scenarios.models.model_id_not_on_hub.test_model_id_not_on_hub import ASKED, MEANT


@broken(only="test_the_documented_id")
def names_none_that_may_be_meant(model, endpoint=None):
    try:
        check_model_id(model, endpoint)
    except ValueError:
        raise ValueError(f"{model} is not on the hub") from None


@broken(only="test_rejects_a_gated")
def being_listed_is_enough(model, endpoint=None):
    from huggingface_hub import HfApi

    HfApi(endpoint=endpoint).model_info(model)


replaces("absent", "transformers.AutoConfig.from_pretrained", only="documented]")(
    lambda original, model, **options: original(MEANT if model == ASKED else model, **options)
)
replaces("changed", "pytest_rlregress.scenarios.models.loopback_hub._Handler._repository")(
    lambda self, *args: self._refuse(403, "", "Forbidden")
)
