"""The language of texts, from their script and their most common words: good enough to choose a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_LEAST_SHARE = 0.08
"""Smallest share of a language's common words among all words of its texts; in running text it is 0.2 to 0.4."""
_READ_CHARACTERS = 100_000


@dataclass(frozen=True)
class Language:
    """A language.

    Args:
        names: its English and own name.
        code: its code of mBART-50, which begins with that of ISO 639-1.
        script: a character class of its letters.
        words: common words that few other languages have; empty if the script decides alone.
        characters_per_token: roughly, for a tokenizer that was trained on the language.
    """

    names: tuple[str, ...]
    code: str
    script: str = "A-Za-zÀ-ɏ"
    words: str = ""
    characters_per_token: float = 4.0


LANGUAGES = {
    "en": Language(("english",), "en_XX", words="the of and to is that for it with was this are not have you"),
    "de": Language(("german", "deutsch"), "de_DE", words="der die und das ist nicht mit den ein eine auf ich sich"),
    "fr": Language(("french", "francais"), "fr_XX", words="le les des et est dans pour une qui pas sur du nous avec"),
    "es": Language(("spanish", "espanol"), "es_XX", words="el los las que en un una por con para del es muy lo"),
    "it": Language(("italian", "italiano"), "it_IT", words="il di che è per una sono non della con gli nel più anche"),
    "nl": Language(("dutch", "nederlands"), "nl_XX", words="het een van niet op te zijn voor met dat ook maar wij"),
    "pt": Language(("portuguese", "portugues"), "pt_XX", words="o os não uma do da em para com que por são mais foi"),
    "pl": Language(("polish", "polski"), "pl_PL", words="nie się na jest że do jak ale to przez był już tym dla"),
    "ro": Language(("romanian", "romana"), "ro_RO", words="și este nu din care pentru la cu sunt mai au pe această"),
    "sv": Language(("swedish", "svenska"), "sv_SE", words="och att det som är på inte jag med har till den av"),
    "cs": Language(("czech", "cesky"), "cs_CZ", words="je se že na jsem jako ale není jsou pro které byl také"),
    "tr": Language(("turkish", "turkce"), "tr_TR", words="ve bir bu için çok ile değil daha olarak gibi ama kadar"),
    "ja": Language(("japanese",), "ja_XX", "぀-ヿ", characters_per_token=1.5),
    "zh": Language(("chinese",), "zh_CN", "一-鿿", characters_per_token=1.2),
    "ko": Language(("korean",), "ko_KR", "가-힣", characters_per_token=1.5),
    "uk": Language(("ukrainian",), "uk_UA", "Ѐ-ӿ", "та не що це на як але було", 2.5),
    "ru": Language(("russian",), "ru_RU", "Ѐ-ӿ", characters_per_token=2.5),
    "ar": Language(("arabic",), "ar_AR", "؀-ۿ", characters_per_token=2.5),
    "he": Language(("hebrew",), "he_IL", "֐-׿", characters_per_token=2.5),
    "hi": Language(("hindi",), "hi_IN", "ऀ-ॿ", characters_per_token=2.5),
    "th": Language(("thai",), "th_TH", "฀-๿", characters_per_token=2.0),
}
"""The languages that are recognised, by their code of ISO 639-1; of those with one script, the first that fits."""


def language_of(texts: Iterable[str]) -> str | None:
    """Returns the code of the texts' language in `LANGUAGES`, or None if it is not recognised."""
    text = " ".join(texts)[:_READ_CHARACTERS].lower()
    letters = sum(map(str.isalpha, text))
    words = Counter(re.findall(r"[^\W\d_]+", text))
    scripts = {language.script for language in LANGUAGES.values()}
    in_script = {script: len(re.findall(f"[{script}]", text)) for script in scripts}
    scores = {}
    for code, language in LANGUAGES.items():
        if not letters or in_script[language.script] < 0.3 * letters:
            continue
        common = sum(words[word] for word in language.words.split()) / max(words.total(), 1)
        scores[code] = common if language.words else _LEAST_SHARE
    best = max(scores, key=lambda code: scores[code], default=None)
    return best if best is not None and scores[best] >= _LEAST_SHARE else None


def language_named(name: str) -> str | None:
    """Returns the code of the language that a column's name means, such as `en`, `en-US`, `text_en` or `German`."""
    parts = re.findall(r"[a-z]+", name.lower())
    for part in parts:
        found = next((code for code, language in LANGUAGES.items() if part in (code, *language.names)), None)
        if found:
            return found
    return None


def characters_per_token(language: str | None) -> float:
    """Returns how many characters a token has, roughly; 3 for a language that is not recognised."""
    return LANGUAGES[language].characters_per_token if language else 3.0
