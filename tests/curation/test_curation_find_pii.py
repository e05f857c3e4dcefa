"""The detector on forms it must know, on what it must leave alone, and on hostile input."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.curation import find_pii
from agent_forge.pii import PATTERN_TYPES, TYPES, Match, fold
from agent_forge.pii.match import resolve_overlaps

FOUND = [
    ("EMAIL", "user@example.com"),
    ("EMAIL", "o'brien@corp.com"),
    ("EMAIL", "first.last+tag@sub.mail.co.uk"),
    ("EMAIL", "josé@correo.es"),
    ("EMAIL", "user@müller.de"),
    ("EMAIL", "jane [at] corp [dot] com"),
    ("EMAIL", "joe＠corp.com"),
    ("EMAIL", '"john doe"@corp.com'),
    ("EMAIL", "x@xn--bcher-kva.example"),
    ("PHONE", "(555) 123-4567"),
    ("PHONE", "(555)123-4567"),
    ("PHONE", "555-123-4567"),
    ("PHONE", "555.123.4567"),
    ("PHONE", "555 123 4567"),
    ("PHONE", "+1-555-123-4567"),
    ("PHONE", "1-800-555-0199"),
    ("PHONE", "+44 20 7946 0958"),
    ("PHONE", "+44 (0)20 7946 0958"),
    ("PHONE", "+389(0)722544096"),
    ("PHONE", "020 7946 0958"),
    ("PHONE", "030/901820-12"),
    ("PHONE", "+33 1 42 68 53 00"),
    ("PHONE", "01 42 68 53 00"),
    ("PHONE", "+81-3-3224-9999"),
    ("PHONE", "+919876543210"),
    ("PHONE", "0044 20 7946 0958"),
    ("PHONE", "+55 (11) 91234-5678"),
    ("PHONE", "8 (495) 123-45-67"),
    ("PHONE", "555-123-4567 ext. 89"),
    ("PHONE", "001-920-866-4851x9426"),
    ("PHONE", "555‑123‑4567"),
    ("PHONE", "（５５５）１２３－４５６７"),
    ("PHONE", "555\u00a0123\u00a04567"),
    ("PHONE", "(+358) 356034373"),
    ("SSN", "123-45-6789"),
    ("SSN", "123 45 6789"),
    ("SSN", "123–45–6789"),
    ("CARD", "4111 1111 1111 1111"),
    ("CARD", "4111111111111111"),
    ("CARD", "3782 822463 10005"),
    ("CARD", "3056 930902 5904"),
    ("CARD", "4222222222222"),
    ("CARD", "6304219447607087665"),
    ("CARD", "1234-5678-9012-3456"),
    ("CARD", "5555.5555.5555.4444"),
    ("IBAN", "GB82 WEST 1234 5698 7654 32"),
    ("IBAN", "DE89370400440532013000"),
    ("IBAN", "FR14 2004 1010 0505 0001 3M02 606"),
    ("IBAN", "MT84MALT011000012345MTLCAST001S"),
    ("IBAN", "gb82west12345698765432"),
    ("IP", "192.168.1.1"),
    ("IP", "10.0.0.0/8"),
    ("IP", "2001:0db8:85a3:0000:0000:8a2e:0370:7334"),
    ("IP", "2001:db8::1"),
    ("IP", "fe80::1ff:fe23:4567:890a"),
    ("IP", "::ffff:192.0.2.128"),
    ("CRYPTO", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"),
    ("CRYPTO", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
    ("CRYPTO", "0x742d35Cc6634C0532925a3b844Bc454e4438f44e"),
    ("SECRET", "AKIAIOSFODNN7EXAMPLE"),
    ("SECRET", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    ("SECRET", "xoxb-123456789012-1234567890123-abcdEFGHijklMNOPqrstUVWX"),
    ("SECRET", "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"),
    ("SECRET", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"),
]
LABELLED = [
    ("PHONE", "call me at 5551234567", "5551234567"),
    ("PHONE", "tel 781 5991", "781 5991"),
    ("PHONE", "You can call 33 93 31", "33 93 31"),
    ("PHONE", "61 51 81 office", "61 51 81"),
    ("PHONE", "tel. 600-123-456", "600-123-456"),
    ("PHONE", "Mob. 98765 43210", "98765 43210"),
    ("PHONE", "https://a.io/?phone=4155550123&x=1", "4155550123"),
    ("PHONE", "https://wa.me/14155552671", "14155552671"),
    ("PHONE", "☎ 2125550142", "2125550142"),
    ("PHONE", "Registrant Phone: +44.2079460958", "+44.2079460958"),
    ("PHONE", "Tel.: +49 (0)30 / 901820", "+49 (0)30 / 901820"),
    ("PHONE", "Ruf an: 0151 23456789", "0151 23456789"),
    ("PHONE", "我的手机号是13800138000，谢谢", "13800138000"),
    ("PHONE", "電話番号は03-1234-5678です", "03-1234-5678"),
    ("PHONE", "전화번호는 010-1234-5678입니다", "010-1234-5678"),
    ("EMAIL", "请联系zhang.san@163.com谢谢", "zhang.san@163.com"),
    ("EMAIL", "写信给用户@例子.广告", "写信给用户@例子.广告"),
    ("CARD", "カード番号4242424242424242です", "4242424242424242"),
    ("IP", "IPは192.168.1.1です", "192.168.1.1"),
    ("IBAN", "IBAN GB37 YDPK 4004 9878 4569 8", "GB37 YDPK 4004 9878 4569 8"),
    ("DATE_OF_BIRTH", "dateOfBirth: 02/13/1980", "02/13/1980"),
    ("SSN", "my SSN is 123456789", "123456789"),
    ("IBAN", "My IBAN is TH785043103993", "TH785043103993"),
    ("PASSPORT", "Passport No: 123456789", "123456789"),
    ("DRIVER_LICENSE", "driver's license number is LH329609T", "LH329609T"),
    ("DATE_OF_BIRTH", "She was born on 4/20/2000.", "4/20/2000"),
    ("DATE_OF_BIRTH", "date of birth is April 5, 1987", "April 5, 1987"),
    ("DATE_OF_BIRTH", "1990-01-31 is my date of birth", "1990-01-31"),
    ("SECRET", "password: hunter22", "hunter22"),
    ("SECRET", "Passwort: Geheim123", "Geheim123"),
    ("SECRET", "docker login -p dckr_pat_Ab1dEfGhIjKlMnOpQrStUvWxYz0", "dckr_pat_Ab1dEfGhIjKlMnOpQrStUvWxYz0"),
    ("EMAIL", "mv jane@corp.com-old x", "jane@corp.com"),
    ("EMAIL", "jane [AT] corp [DOT] com", "jane [AT] corp [DOT] com"),
    ("EMAIL", "jane {at} corp {dot} com", "jane {at} corp {dot} com"),
    ("CARD", "4539-5787 6362-1486", "4539-5787 6362-1486"),
    ("CARD", "4539\u200b5787\u200b6362\u200b1486", "4539\u200b5787\u200b6362\u200b1486"),
    ("SSN", "SSN 219 - 09 - 9998", "219 - 09 - 9998"),
    ("IP", "block 8.8.8.8-8.8.8.20", "8.8.8.20"),
    ("IP", "upgrade the host 8.8.4.4", "8.8.4.4"),
    ("PHONE", "students whose cell phone number matches '09700166582'", "09700166582"),
    ("PHONE", "contact number as 555-1234", "555-1234"),
    ("PHONE", "send a fax with a document to recipient 555-1234", "555-1234"),
    ("PHONE", "Rufen Sie 04321-5678 an", "04321-5678"),
    ("SECRET", 'api_key = "d41d8cd98f00b204e9800998ecf8427e"', "d41d8cd98f00b204e9800998ecf8427e"),
    ("SECRET", "Authorization: Bearer abc123def456ghi789", "abc123def456ghi789"),
    ("URL_CREDENTIALS", "postgres://admin:s3cret@db.corp.com:5432/x", "admin:s3cret@db.corp.com:5432"),
    ("IP", "ping ::1 now", "::1"),
]
LEFT_ALONE = [
    "timestamp 1730764800 and 1730764800123",
    "order number 5551234567, order #12345-67890",
    "Invoice 2024-000-1234",
    "version 1.2.3.4, v7.1.4.34, numpy==1.26.4.1, Chrome/114.0.5735.90",
    "550e8400-e29b-41d4-a716-446655440000",
    "12345678-1234-1234-1234-123456789012",
    "d41d8cd98f00b204e9800998ecf8427e da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "ISBN 978-0-306-40615-7 or 9780306406157",
    "0.5551234567 and 3.141592653589793",
    "4111111111111112, 1234 5678 9012 3457",
    "000-12-3456 666-12-3456 900-12-3456 123-00-4567 123-45-0000",
    "2024-01-05 12:30:45, 01/02/2024, (1865–1877)",
    "1 2 3 4 5 6 7 8 9 10 11 12 and 10 20 30 40 50 60",
    "a@b.c|om, a@b..com, git@github.com:org/repo.git, @decorator, foo@1.2.3",
    "x[::2], std::vector, 12:30:45, 00:1b:44:11:3a:b7",
    "tokens: 1234567, the token is invalid, password: os.environ['X']",
    "1.3.6.1.4.1.311, 192.168.1.256, section 1.2.3.4",
    "1,234,567,890 and $1,234,567",
    "call 2024-01-05, zip 90210-1234",
    "[EMAIL] [PHONE] password: [SECRET] postgres://[URL_CREDENTIALS]/x",
    "The answer is 5040000. Answer: 7654321. answer: 25 36 49 64",
    "My phone has 2073600 pixels, the mobile game made 50000000 downloads, each cell holds 3456789 molecules",
    "Text messages: 8765432 sent to reach 2345678 subscribers, and our number system has 3628800 of them",
    "normal blood pH is in the range of 7.35–7.45; a year, as it is called, is 365.2422 days",
    "Kant, Immanuel. (1785) 1997. Groundwork; Russell (1912) 1959",
    "https://doi.org/10.1037/0022-3514.70.5.979 doi:10.1037//0033-2909.128.4.539 https://a.com/2020/09/02/1007938/x",
    "the ratio is 27:9:9:9:3:3:3:1, EUI 00:11:22:33:44:55:66:77, +(64.927786) and +3.14159265",
    "SKU 123-45-6780, order number is 4539 5787 6362 1486",
    "newborn (accessed July 2, 2013); the average length at birth is 35.5–40.5 cm; birthday ?,39.0 61.0",
    '__version__ = "3.5.0.1", server version: 8.8.8.8, from section 7.2.1.1, page 20',
    "24 Prime Park Way, Natick, MA 01760-2098; Eur. Phys. J. B 71 (2009) 623; 12(2011) 345-367",
    "sk-learn-contrib-categorical-encoding, rpm-1.2.3.4-5.el7, f(at), x[at], 219 - 09 - 9998, deploy@web-1.prod-eu",
    "at birth. Time. http://world.time.com/2013/11/12/boy",
]


@pytest.mark.parametrize(("kind", "value"), FOUND)
def test_a_known_form_is_found_whole_wherever_it_stands(kind: str, value: str) -> None:
    for lead, tail in [("", ""), ("x ", "."), ("Hi, ", " thanks"), ("(see ", ")"), ("say: ", "\n")]:
        text = lead + value + tail
        spans = [(m.type, m.start, m.end) for m in find_pii(text)]
        assert (kind, len(lead), len(lead) + len(value)) in spans, spans


INTRODUCED = [
    "phone (home) {}",
    "Phone No. {}",
    "helpline no. {}",
    "phone_number: {}",
    "mobile_no={}",
    "tel.nr. {}",
    "Tel.-Nr.: {}",
    "Telephone of the office {}",
    "phone for Ravi {}",
    "phone is still {}",
    "call: {}",
    "Contact: {}",
    "Call us today {}",
    "you can text me at {}",
    "text {} for info",
    "reach out to me on {}",
    "message me on {}",
    "Handynummer {}",
    "ph {}",
    "Phone number (mobile): {}",
    "her number's {}",
    "numéro de téléphone : {}",
    "Phone / Fax: {}",
    "Phone:\n\n{}",
]


@pytest.mark.parametrize("words", INTRODUCED)
@pytest.mark.parametrize("number", ["5551234567", "61234567"])
def test_bare_digits_are_a_telephone_where_words_introduce_them(words: str, number: str) -> None:
    assert [(match.type, match.text) for match in find_pii(words.format(number))] == [("PHONE", number)]


@pytest.mark.parametrize(("kind", "text", "value"), LABELLED)
def test_a_label_makes_the_difference(kind: str, text: str, value: str) -> None:
    assert (kind, value) in [(m.type, m.text) for m in find_pii(text)]


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_numbers_that_are_none_of_it_survive(text: str) -> None:
    assert find_pii(text) == []


def test_the_four_examples_of_the_first_script() -> None:
    text = "user@example.com (555) 123-4567 123-45-6789 1234-5678-9012-3456"
    assert [m.type for m in find_pii(text)] == ["EMAIL", "PHONE", "SSN", "CARD"]
    assert all(m.reserved for m in find_pii(text))


def test_reserved_values_are_marked_and_real_ones_are_not() -> None:
    marked = {m.text: m.reserved for m in find_pii("a@example.org b@corp.io 192.0.2.7 8.8.8.8 4242424242424242")}
    assert marked == {
        "a@example.org": True, "b@corp.io": False, "192.0.2.7": True, "8.8.8.8": False, "4242424242424242": True,
    }  # fmt: skip


def test_a_private_key_is_taken_to_its_end_or_as_far_as_its_body_goes() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nabc=\n-----END RSA PRIVATE KEY-----"
    (match,) = find_pii(f"key:\n{key}\nbye")
    assert (match.type, match.text) == ("PRIVATE_KEY", key)
    (cut,) = [m for m in find_pii("-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n(end") if m.type == "PRIVATE_KEY"]
    assert cut.text.endswith("CAQEA7\n")


def test_types_narrow_the_search() -> None:
    text = "jo@corp.io, 555-123-4567, password: hunter22"
    assert [m.type for m in find_pii(text, types={"PHONE"})] == ["PHONE"]
    assert [m.type for m in find_pii(text, types={"SECRET", "EMAIL"})] == ["EMAIL", "SECRET"]


def test_a_hint_stands_for_the_words_before() -> None:
    assert find_pii("5551234567") == []
    (match,) = find_pii("5551234567", hint="phone")
    assert (match.type, match.start, match.end) == ("PHONE", 0, 10)


def test_names_come_from_the_finder_that_is_given() -> None:
    found = find_pii("Ada wrote to jo@corp.io", names=lambda text: [Match("PERSON", 0, 3, "Ada")])
    assert [(m.type, m.text) for m in found] == [("PERSON", "Ada"), ("EMAIL", "jo@corp.io")]


@given(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 40), st.integers(1, 12)), max_size=12))
def test_overlaps_leave_a_maximal_set_without_overlap(raw: list[tuple[str, int, int]]) -> None:
    matches = [Match(kind, start, start + size, "") for kind, start, size in raw]
    kept = resolve_overlaps(matches)
    assert all(left.end <= right.start for left, right in pairwise(kept))
    for match in matches:  # whatever was dropped overlaps something at least as long
        rivals = [k for k in kept if k.start < match.end and match.start < k.end]
        assert rivals
        assert max(r.end - r.start for r in rivals) >= match.end - match.start


@given(st.text(max_size=200))
def test_spans_point_into_the_text_and_never_overlap(text: str) -> None:
    found = find_pii(text)
    assert all(text[m.start : m.end] == m.text and m.type in PATTERN_TYPES for m in found)
    assert all(left.end <= right.start for left, right in pairwise(found))


@given(st.text())
def test_folding_keeps_every_offset(text: str) -> None:
    assert len(fold(text)) == len(text)


HOSTILE = [
    "a.",
    "1-",
    "1 ",
    "1",
    "12 ",
    "(1",
    "+1 ",
    "1/",
    "123-45-",
    "4111 ",
    "@",
    "a@",
    "a@a.",
    "0x",
    ":",
    "a:",
    "::",
    "1.1.",
    "_a",
    "_",
    "api key: a1",
    "password:",
    "password is a1b2c3d4 ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN ",
    ".eyJ",
    "eyJaaaaaaaaa.",
    "at)",
    "a (at) b.",
    "born ",
    "born 1/1/",
    "dob 01 ",
    "passport 1",
    "driver license A",
    "GB82 ",
    "bc1",
    "1A",
    "://a:",
    "://a:a@",
    "sk-",
    "ghp_a",
    "é@é.",
    "İ",
    '"@',
    "http://",
    "tel 1 ",
    "AKIA",
    "/services/a",
    "+44 ",
    "00 1 ",
    "01 ",
    "(0",
    "１",
    "x 1234567 ",
    "password a1",
    "passwords: a1b2c3 and ",
    "passport A1234567 ",
    "12 Main ",
    "Aa Bb (",
    "call (",
    "call 12345678 ",
    "1 rue de ",
    "Calle A ",
    "A-",
    "Aweg 1 ",
    "中路1",
    "tax id 1 ",
    "1/1/",
]


@pytest.mark.untraced
@pytest.mark.parametrize("unit", HOSTILE)
def test_time_grows_with_the_length_and_no_faster(unit: str) -> None:
    def cost(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        start = time.process_time()
        find_pii(text)
        return time.process_time() - start

    small = max(min(cost(1_000), cost(1_000)), 0.002)
    assert any(cost(8_000) < 8 * small * 4 for _ in range(3))  # quadratic time would be 64 times


# Chats, call logs, papers and addresses

CHATS = [
    ("[Call 1] Chen Jianguo (13802135691)", "PHONE", ["13802135691"]),
    ("[Call 2] 陈建国 (13802135691), 3 min", "PHONE", ["13802135691"]),
    ("Speaker 2 (13802135691): hello?", "PHONE", ["13802135691"]),
    ("missed call from 9876543210", "PHONE", ["9876543210"]),
    ("10:32 outgoing call to Dr. Jo Weiß (9876543210), 4m12s", "PHONE", ["9876543210"]),
    ("agent: your callback number? customer: sure, 9876543210", "PHONE", ["9876543210"]),
    ("send it to the phone number 1234567890", "PHONE", ["1234567890"]),
    ("my password hunter2 does not work", "SECRET", ["hunter2"]),
    ("the password for the wifi is Tr0ub4dor&3.", "SECRET", ["Tr0ub4dor&3"]),
    ("use the token 9sKq81LmZ04tRw for staging", "SECRET", ["9sKq81LmZ04tRw"]),
    ("api key 9f8e7d6c5b4a was leaked", "SECRET", ["9f8e7d6c5b4a"]),
    ("access token 'qwertyuiop12345' in the header", "SECRET", ["qwertyuiop12345"]),
    ("passwords: Ab3defg, Cd4efgh and Zz9xxyy.", "SECRET", ["Ab3defg", "Cd4efgh", "Zz9xxyy"]),
    ("Authorization: Basic aHVudGVyMjpodW50ZXIy", "SECRET", ["aHVudGVyMjpodW50ZXIy"]),
    ("Passports: K1234567 and L8989012C", "PASSPORT", ["K1234567", "L8989012C"]),
    ("passport numbers 925665416 / 925665417", "PASSPORT", ["925665416", "925665417"]),
    ("driver's licenses: D1234567 and D7654321", "DRIVER_LICENSE", ["D1234567", "D7654321"]),
    ("SIN 046 454 286", "NATIONAL_ID", ["046 454 286"]),
    ("her social insurance number is 046454286", "NATIONAL_ID", ["046454286"]),
    ("NHS number 943 476 5919", "NATIONAL_ID", ["943 476 5919"]),
    ("Aadhaar 2341 2341 2346", "NATIONAL_ID", ["2341 2341 2346"]),
    ("Tax ID: 12-3456789", "NATIONAL_ID", ["12-3456789"]),
    ("CPF 529.982.247-25 e CNPJ 11.222.333/0001-81", "NATIONAL_ID", ["529.982.247-25", "11.222.333/0001-81"]),
    ("codice fiscale RSSMRA80A01H501U", "NATIONAL_ID", ["RSSMRA80A01H501U"]),
    ("身份证号码 11010519491231002X", "NATIONAL_ID", ["11010519491231002X"]),
    ("AHV 756.9217.0769.85", "NATIONAL_ID", ["756.9217.0769.85"]),
    ("NI number QQ123456C, I mean JG 10 37 59 A", "NATIONAL_ID", ["QQ123456C", "JG 10 37 59 A"]),
    ("DNI 12345678Z, NIE X2482300W, NRIC S1234567D", "NATIONAL_ID", ["12345678Z", "X2482300W", "S1234567D"]),
    ("she lives at 221B Baker Street, London NW1 6XE.", "ADDRESS", ["221B Baker Street, London NW1 6XE"]),
    ("to 654 Pine Avenue, Unit 3A, Chicago, IL 60601", "ADDRESS", ["654 Pine Avenue, Unit 3A, Chicago, IL 60601"]),
    ("PO Box 1234", "ADDRESS", ["PO Box 1234"]),
    ("Musterstraße 12, 10115 Berlin", "ADDRESS", ["Musterstraße 12, 10115 Berlin"]),
    ("au 12 rue de la Paix, 75002 Paris", "ADDRESS", ["12 rue de la Paix, 75002 Paris"]),
    ("Calle Mayor 5", "ADDRESS", ["Calle Mayor 5"]),
    ("北京市朝阳区建国路88号", "ADDRESS", ["北京市朝阳区建国路88号"]),
]


@pytest.mark.parametrize(("text", "kind", "values"), CHATS)
def test_chats_papers_and_addresses(text: str, kind: str, values: list[str]) -> None:
    assert [(m.type, m.text) for m in find_pii(text)] == [(kind, value) for value in values]


@pytest.mark.parametrize(
    "text",
    ["the password must have 8 characters", "password SHA-256 hashing", "a token of 16 bytes, 12345678 tokens in all",
     "password: get_password(user1)", "9 Supreme Court justices", "in 1929 Wall Street crashed", "12 Angry Men",
     "SIN 046454287", "NHS 9434765918 patients", "529.982.247-26", "RSSMRA80A01H501V", "11010519491231002A",
     "Smith (1998), Jones (12345678)", "Order Number (9876543210)", "chapter 12 Aladdin", "the token gpt-4o-mini",
     "we call it the 1048576 problem", "in spring 1773, the East India Company", "at 50 °C. At 60 it boils"],
)  # fmt: skip
def test_what_only_looks_like_it_stays(text: str) -> None:
    """Wrong check digits, courts, years, talk about passwords: as they are."""
    assert find_pii(text) == []
