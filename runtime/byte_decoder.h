// byte_decoder.h: bytes that a process wrote for a terminal, as text and cursor movements.
#pragma once

#include <string>
#include <string_view>

namespace sgpu {

struct Token {
    enum class Kind {
        none,  // the bytes are used up
        text,  // valid UTF-8 without control characters, but for tabs and colours
        newline,
        carriage_return,  // back to the line's start
        backspace,        // one character back
        up,               // `count` lines up
        erase_right,      // what is right of the cursor
        erase_line,       // the whole line
        cursor_shown,     // what was drawn with the cursor hidden is done
    };
    Kind kind = Kind::none;
    std::string_view text = {};  // valid until the next call or the end of the bytes
    int count = 0;
};

// Bytes may be cut anywhere: a character or an escape sequence that is not complete is kept for
// the next call. What is no UTF-8 becomes U+FFFD, a control character its picture (U+2400 ...).
// Colours (CSI ... m) pass as text; of other terminal sequences only what Token names has an
// effect. Linear in time, kLongestEscape bytes of memory.
//
// Threads: one thread at a time.
class ByteDecoder {
public:
    static constexpr std::size_t kLongestEscape = 4096;  // a longer one is shown as text

    // Takes the next token off the front of `bytes`.
    Token next(std::string_view& bytes);

    // The stream is over: what a character or an escape sequence cut at its end looks like; "" if
    // none is cut. Valid until the next call.
    std::string_view finish();

private:
    Token special(std::string_view& bytes);
    Token continue_char(std::string_view& bytes);
    Token continue_escape(std::string_view& bytes);
    Token continue_csi(std::string_view& bytes);
    Token continue_string(std::string_view& bytes);
    Token finish_csi(char final_byte);
    Token pending_as_text();
    Token give(std::string text);

    std::string pending_;  // the beginning of a character or of an escape sequence
    std::string given_;    // what the last token's text looks at, if not the caller's bytes
};

}  // namespace sgpu
