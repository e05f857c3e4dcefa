"""The checks against published values, and the telephone table against libphonenumber's own metadata."""

from __future__ import annotations

import random

import pytest

from agent_forge.pii import checksums, phones, secrets


def test_luhn_catches_every_single_wrong_digit() -> None:
    good = "4539578763621486"
    assert checksums.luhn(good)
    for place, digit in enumerate(good):
        for other in "0123456789":
            if other != digit:
                assert not checksums.luhn(good[:place] + other + good[place + 1 :])


def test_iban_catches_swapped_neighbours() -> None:
    good = "DE89370400440532013000"
    assert checksums.is_iban(good)
    for place in range(4, len(good) - 1):
        swapped = good[:place] + good[place + 1] + good[place] + good[place + 2 :]
        assert swapped == good or not checksums.is_iban(swapped)
    assert not checksums.is_iban(good[:-1])
    assert checksums.mod97("TH785043103993")


@pytest.mark.parametrize(
    ("digits", "known"),
    [
        ("4", False),
        ("341111111111111", True),
        ("2221000000000009", True),
        ("2720990000000007", True),
        ("9999999999999995", False),
    ],
)
def test_issuers_by_prefix_and_length(digits: str, known: bool) -> None:
    assert checksums.card_issuer(digits) is known


def test_bitcoin_addresses_check_themselves() -> None:
    assert checksums.is_base58check("1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2")
    assert not checksums.is_base58check("1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3")
    assert not checksums.is_base58check("z" * 40)
    assert checksums.is_bech32("bc1p5cyxnuxmeuwuvkwfem96lqzszd02n6xdcjrs20cac6yqjjwudpxqkedrcr")
    assert not checksums.is_bech32("bc1p5cyxnuxmeuwuvkwfem96lqzszd02n6xdcjrs20cac6yqjjwudpxqkedrcq")
    assert not checksums.is_bech32("bc1!!!")


def test_addresses() -> None:
    assert checksums.parse_ip("1.2.3.4") is not None
    assert checksums.parse_ip("1.2.3.400") is None


def test_the_longest_number_of_each_country_is_libphonenumbers() -> None:
    metadata = pytest.importorskip("phonenumbers")
    for code, regions in metadata.COUNTRY_CODE_TO_REGION_CODE.items():
        lengths = set()
        for region in regions:
            plan = (
                metadata.PhoneMetadata.metadata_for_nongeo_region(code, None)
                if region == "001"
                else metadata.PhoneMetadata.metadata_for_region(region, None)
            )
            lengths |= {size for size in plan.general_desc.possible_length if size > 0} if plan else set()
        if str(code) in phones.CALLING_CODES:  # a newer release may know one more country
            assert phones.longest_national_number(str(code)) == max(lengths), code
    known = {str(code) for code in metadata.COUNTRY_CODE_TO_REGION_CODE}
    assert len(phones.CALLING_CODES & known) >= 210


def test_example_numbers_of_every_country_are_found_in_every_written_form() -> None:
    from agent_forge.curation import find_pii

    metadata = pytest.importorskip("phonenumbers")
    missed, forms = [], (metadata.PhoneNumberFormat.INTERNATIONAL, metadata.PhoneNumberFormat.E164)
    for region in sorted(metadata.SUPPORTED_REGIONS):
        for kind in (metadata.PhoneNumberType.FIXED_LINE, metadata.PhoneNumberType.MOBILE):
            number = metadata.example_number_for_type(region, kind)
            for form in forms if number else ():
                written = metadata.format_number(number, form)
                text = f"Here: {written}."
                if not any(m.type == "PHONE" and written in m.text for m in find_pii(text)):
                    missed.append((region, written))
    assert len(missed) <= 5, missed  # numbers of five or six digits are too short to tell without a word beside them


def test_entropy_of_random_keys_lies_above_that_of_words() -> None:
    rng = random.Random(1)
    key = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=40))
    assert secrets.entropy(key) > 4 > secrets.entropy("aaaabbbbaaaabbbb")
