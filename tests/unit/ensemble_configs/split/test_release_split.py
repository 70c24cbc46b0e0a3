# SPDX-License-Identifier: Apache-2.0
"""A model sees a new split with its next request, and none after the end of the last one."""

from pathlib import Path

from ensemble_configs.split.release_split import ReleaseShare, ReleaseSplit, SplitFile


def split(*, share: float, ends_s: float) -> ReleaseSplit:
    shares = (ReleaseShare(upto=share, release=2, arm="candidate"), ReleaseShare(upto=1.0, release=1))
    return ReleaseSplit(rollout=1, step=0, hash_seed="s", shares=shares, journal="/j", ends_s=ends_s)


def test_a_change_holds_from_the_next_look_on(tmp_path: Path) -> None:
    writer, reader = SplitFile(tmp_path, "chat_"), SplitFile(tmp_path, "chat_", now_s=lambda: 10.0)
    assert reader.current() is None
    for share in (0.1, 0.2, 0.3):
        writer.write(split(share=share, ends_s=11.0))
        found = reader.current()
        assert found is not None
        assert found.shares[0].upto == share
    assert SplitFile(tmp_path, "other_").current() is None


def test_a_split_ends_by_itself_and_goes_on_when_its_end_is_put_off(tmp_path: Path) -> None:
    now_s = [10.0]
    file = SplitFile(tmp_path, "", now_s=lambda: now_s[0])
    file.write(split(share=0.1, ends_s=15.0))
    now_s[0] = 14.9
    assert file.current() is not None
    now_s[0] = 15.0
    assert file.current() is None
    file.write(split(share=0.1, ends_s=20.0))
    assert file.current() is not None


def test_a_place_lies_in_one_share() -> None:
    found = split(share=0.25, ends_s=0)
    assert [found.share_at(place).release for place in (0.0, 0.2499, 0.25, 0.9999)] == [2, 2, 1, 1]
