/* pretok_scripts.c - the pattern of the UnicodeScripts pre-tokenizer.
 *
 * Hugging Face's tokenizers library has a table of scripts as of Unicode 9; these are its scripts.
 * Later ones count as unknown there, and a character of theirs is in no run. */
#include "token/pretok.h"

/* Common scripts first: alternatives are tried in this order. */
/* clang-format off */
static const char *const scripts[] = {
    "Common", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Hangul", "Devanagari", "Thai",
    "Inherited", "Adlam", "Ahom", "Anatolian_Hieroglyphs", "Armenian", "Avestan", "Balinese",
    "Bamum", "Bassa_Vah", "Batak", "Bengali", "Bhaiksuki", "Bopomofo", "Brahmi", "Braille",
    "Buginese", "Buhid", "Canadian_Aboriginal", "Carian", "Caucasian_Albanian", "Chakma", "Cham",
    "Cherokee", "Coptic", "Cuneiform", "Cypriot", "Deseret", "Duployan", "Egyptian_Hieroglyphs",
    "Elbasan", "Ethiopic", "Georgian", "Glagolitic", "Gothic", "Grantha", "Gujarati", "Gurmukhi",
    "Hanunoo", "Hatran", "Imperial_Aramaic", "Inscriptional_Pahlavi", "Inscriptional_Parthian",
    "Javanese", "Kaithi", "Kannada", "Kayah_Li", "Kharoshthi", "Khmer", "Khojki", "Khudawadi",
    "Lao", "Lepcha", "Limbu", "Linear_A", "Linear_B", "Lisu", "Lycian", "Lydian", "Mahajani",
    "Malayalam", "Mandaic", "Manichaean", "Marchen", "Meetei_Mayek", "Mende_Kikakui",
    "Meroitic_Cursive", "Meroitic_Hieroglyphs", "Miao", "Modi", "Mongolian", "Mro", "Multani",
    "Myanmar", "Nabataean", "New_Tai_Lue", "Newa", "Nko", "Ogham", "Ol_Chiki", "Old_Hungarian",
    "Old_Italic", "Old_North_Arabian", "Old_Permic", "Old_Persian", "Old_South_Arabian",
    "Old_Turkic", "Oriya", "Osage", "Osmanya", "Pahawh_Hmong", "Palmyrene", "Pau_Cin_Hau",
    "Phags_Pa", "Phoenician", "Psalter_Pahlavi", "Rejang", "Runic", "Samaritan", "Saurashtra",
    "Sharada", "Shavian", "Siddham", "SignWriting", "Sinhala", "Sora_Sompeng", "Sundanese",
    "Syloti_Nagri", "Syriac", "Tagalog", "Tagbanwa", "Tai_Le", "Tai_Tham", "Tai_Viet", "Takri",
    "Tamil", "Tangut", "Telugu", "Thaana", "Tibetan", "Tifinagh", "Tirhuta", "Ugaritic", "Vai",
    "Warang_Citi", "Yi",
};
/* clang-format on */

void pretok_put_script_pattern(struct buf *out)
{
    buf_puts(out, "[\\p{Han}\\p{Hiragana}\\p{Katakana}\\x{30fc}][\\p{Han}\\p{Hiragana}\\p{Katakana}"
                  "\\x{30fc} ]*");
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        /* Common: a space and U+30FC, the long vowel mark, do not start a run of it */
        if (i == 0) buf_puts(out, "|(?! )(?:(?!\\x{30fc})[\\p{Common} ])+");
        else buf_printf(out, "|\\p{%s}[\\p{%s} ]*", scripts[i], scripts[i]);
    }
}
