from stepscope.core.listing import listed


def test_long_lists_name_the_first_and_say_that_there_are_more() -> None:
    assert listed([3, 1]) == "3, 1"
    assert listed(range(9), most=8) == "0, 1, 2, 3, 4, 5, 6, 7, ..."
