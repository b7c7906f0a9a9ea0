import oncebox
import service.client


def test_the_module_has_the_client_s_public_names_and_no_others() -> None:
    assert oncebox.__all__ == service.client.__all__
    assert {"Client", "AsyncClient"} <= set(oncebox.__all__)
    for name in oncebox.__all__:
        assert getattr(oncebox, name) is getattr(service.client, name)
