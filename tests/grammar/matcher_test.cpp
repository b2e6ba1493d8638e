// The matcher against a slow twin on random grammars, and its masks against a look at every token.
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "grammar/gbnf.h"
#include "tests/grammar/vocabularies.h"
#include "tests/model/expect_error.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// A random grammar: as GBNF, and as a tree in which the twin looks for texts.
struct Tree {
  enum Kind { TEXT, CLASS, SEQUENCE, CHOICE, REPEAT, RULE } kind = TEXT;
  std::string text;             // TEXT
  std::set<std::string> chars;  // CLASS
  std::vector<Tree> parts;
  int min = 0, max = 0;  // REPEAT; max -1: any
  int rule = 0;
};

const std::vector<std::string> kChars = {"a", "b", "\xc3\xa9", "\xe4\xb8\xad"};

struct RandomGrammar {
  std::vector<Tree> rules;
  std::mt19937 random;

  explicit RandomGrammar(uint32_t seed) : random(seed) {
    const int n = 1 + pick(3);
    for (int i = 0; i < n; ++i) rules.emplace_back();
    for (int i = 0; i < n; ++i) rules[static_cast<size_t>(i)] = make(3, i, true);
  }
  int pick(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }

  // left: a rule that follows here would be called before any character.
  Tree make(int depth, int rule, bool left) {
    const int kind = depth == 0 ? pick(2) : pick(7);
    Tree t;
    if (kind == 0) {
      t.kind = Tree::TEXT;
      for (int i = 1 + pick(2); i > 0; --i) t.text += kChars[static_cast<size_t>(pick(4))];
    } else if (kind == 1) {
      t.kind = Tree::CLASS;
      for (const std::string& c : kChars)
        if (pick(2)) t.chars.insert(c);
      if (t.chars.empty()) t.chars.insert("a");
    } else if (kind == 2) {
      t.kind = Tree::CHOICE;
      for (int i = 2 + pick(2); i > 0; --i) t.parts.push_back(make(depth - 1, rule, left));
    } else if (kind <= 4) {
      t.kind = Tree::REPEAT;
      t.min = pick(4);
      t.max = pick(3) ? t.min + pick(3) : -1;
      if (t.max == 0) t.max = 1;
      t.parts.push_back(make(depth - 1, rule, left));
    } else {
      t.kind = Tree::SEQUENCE;
      Tree first;
      first.text = kChars[static_cast<size_t>(pick(4))];
      if (pick(2)) t.parts.push_back(make(depth - 1, rule, left));
      if (pick(3) == 0) {  // recursion behind a character, and optional: every rule has a text
        Tree call, optional;
        call.kind = Tree::RULE;
        call.rule = pick(static_cast<int>(rules.size()));
        optional.kind = Tree::REPEAT;
        optional.max = 1;
        optional.parts.push_back(call);
        t.parts.push_back(first);
        t.parts.push_back(optional);
      }
      t.parts.push_back(make(depth - 1, rule, left));
    }
    return t;
  }

  std::string gbnf(const Tree& t) const {
    std::string out;
    switch (t.kind) {
      case Tree::TEXT: return "\"" + t.text + "\"";
      case Tree::CLASS:
        for (const std::string& c : t.chars) out += c;
        return "[" + out + "]";
      case Tree::RULE: return t.rule == 0 ? "root" : "r" + std::to_string(t.rule);
      case Tree::REPEAT:
        return "(" + gbnf(t.parts[0]) + "){" + std::to_string(t.min) + "," +
               (t.max < 0 ? "" : std::to_string(t.max)) + "}";
      default:
        for (const Tree& part : t.parts)
          out += (out.empty() ? "" : t.kind == Tree::CHOICE ? " | " : " ") + gbnf(part);
        return "(" + out + ")";
    }
  }
  std::string gbnf() const {
    std::string out;
    for (size_t i = 0; i < rules.size(); ++i)
      out += (i == 0 ? "root" : "r" + std::to_string(i)) + " ::= " + gbnf(rules[i]) + "\n";
    return out;
  }
};

class Twin {
 public:
  Twin(const RandomGrammar& g, const std::string& text) : g_(g), text_(text) {}
  bool matches() { return ends(g_.rules[0], 0).count(text_.size()) > 0; }

 private:
  using Ends = std::set<size_t>;
  const Ends& ends(const Tree& t, size_t at) {
    const auto key = std::make_pair(&t, at);
    if (const auto it = known_.find(key); it != known_.end()) return it->second;
    Ends out;
    switch (t.kind) {
      case Tree::TEXT:
        if (text_.compare(at, t.text.size(), t.text) == 0) out.insert(at + t.text.size());
        break;
      case Tree::CLASS:
        for (const std::string& c : t.chars)
          if (text_.compare(at, c.size(), c) == 0) out.insert(at + c.size());
        break;
      case Tree::RULE: out = ends(g_.rules[static_cast<size_t>(t.rule)], at); break;
      case Tree::CHOICE:
        for (const Tree& part : t.parts)
          for (const size_t end : ends(part, at)) out.insert(end);
        break;
      case Tree::SEQUENCE: {
        Ends now{at};
        for (const Tree& part : t.parts) {
          Ends next;
          for (const size_t from : now)
            for (const size_t end : ends(part, from)) next.insert(end);
          now = next;
        }
        out = now;
        break;
      }
      case Tree::REPEAT: {
        Ends now{at};
        if (t.min == 0) out = now;
        const int rounds = t.max < 0 ? t.min + static_cast<int>(text_.size()) + 1 : t.max;
        for (int i = 1; i <= rounds; ++i) {
          Ends next;
          for (const size_t from : now)
            for (const size_t end : ends(t.parts[0], from)) next.insert(end);
          now = next;
          if (i >= t.min) out.insert(now.begin(), now.end());
        }
        break;
      }
    }
    return known_[key] = out;
  }

  const RandomGrammar& g_;
  const std::string& text_;
  std::map<std::pair<const Tree*, size_t>, Ends> known_;
};

// All texts of up to n characters.
std::vector<std::string> all_texts(int n) {
  std::vector<std::string> out{""};
  for (size_t begin = 0; n-- > 0;) {
    const size_t end = out.size();
    for (; begin < end; ++begin)
      for (const std::string& c : kChars) out.push_back(out[begin] + c);
  }
  return out;
}

// Tokens of whole and half characters, some longer than TokenTries::kShort.
Vocabulary random_vocabulary(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::string> texts = {"a", "b", "\xc3", "\xa9", "\xe4", "\xb8", "\xad", "x"};
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (uint32_t n = 1 + random() % (i % 10 == 0 ? 20 : 4); n > 0; --n)
      text += kChars[random() % kChars.size()];
    const size_t cut = random() % 3;
    if (cut == 1) text.erase(0, 1);
    if (cut == 2) text.pop_back();
    if (!text.empty()) texts.push_back(text);
  }
  texts.push_back("a");  // twice
  return Vocabulary(texts);
}

void check_mask(const Vocabulary& v, grammar::Matcher& m) {
  std::vector<uint32_t> mask(v.tokens->mask_words());
  const bool any = m.allowed(true, mask);
  bool found = false;
  for (int32_t t = 0; t < static_cast<int32_t>(v.texts.size()); ++t) {
    grammar::Matcher copy = m;
    const bool want = t == v.end ? m.complete() : !v.texts[t].empty() && copy.accept(v.texts[t]);
    found |= want;
    if (bit(mask, t) != want) {
      INFO("token " << t << " '" << v.texts[t] << "' is " << (want ? "not " : "") << "allowed");
      CHECK(false);
    }
  }
  CHECK(any == found);
}

}  // namespace

TEST_CASE("grammars: random ones accept what a slow twin accepts", "[grammar]") {
  const Vocabulary v = bytes();
  const std::vector<std::string> texts = all_texts(all_rounds() ? 6 : 5);
  for (uint32_t seed = 0; seed < (all_rounds() ? 1000u : 150u); ++seed) {
    const RandomGrammar g(seed);
    INFO("seed " << seed << "\n" << g.gbnf());
    std::shared_ptr<const grammar::Grammar> made;
    try {
      made = compiled(v, g.gbnf());
    } catch (const Error& e) {
      REQUIRE(std::string(e.what()).find("left recursion") != std::string::npos);
      continue;
    }
    for (const std::string& text : texts) {
      const bool want = Twin(g, text).matches();
      if (accepts(made, text) != want) {
        INFO("'" << text << "' should " << (want ? "" : "not ") << "be accepted");
        CHECK(false);
      }
    }
  }
}

TEST_CASE("grammars: masks have the tokens that a look at each finds", "[grammar]") {
  std::mt19937 random(7);
  uint32_t ambiguous = 0;  // refused while a text is read
  for (uint32_t seed = 0; seed < (all_rounds() ? 600u : 100u); ++seed) {
    const Vocabulary v = random_vocabulary(seed);
    const RandomGrammar g(seed);
    INFO("seed " << seed << "\n" << g.gbnf());
    std::shared_ptr<const grammar::Grammar> made;
    try {
      made = compiled(v, g.gbnf());
    } catch (const Error&) {
      continue;
    }
    for (int walk = 0; walk < 3; ++walk) try {
        grammar::Matcher m(made, {});
        for (int step = 0; step < 12; ++step) {
          check_mask(v, m);
          std::vector<uint32_t> mask(v.tokens->mask_words());
          m.allowed(false, mask);
          std::vector<int32_t> choices;
          for (int32_t t = 0; t < static_cast<int32_t>(v.texts.size()); ++t)
            if (bit(mask, t)) choices.push_back(t);
          if (choices.empty()) break;
          REQUIRE(m.accept(v.texts[choices[random() % choices.size()]]));
        }
      } catch (const Error& e) {
        REQUIRE(e.status() == RIFFLE_UNSUPPORTED);
        REQUIRE(std::string(e.what()).find("too ambiguous") != std::string::npos);
        ++ambiguous;
      }
  }
  CHECK(ambiguous < 10);
}

TEST_CASE("grammars: limits that a token can and cannot reach", "[grammar]") {
  std::vector<std::string> texts = {"a", "b", ".", " ", "\xc3\xa9", "\xc3", "\xa9"};
  for (int n = 2; n <= 40; ++n) texts.push_back(std::string(static_cast<size_t>(n), 'a'));
  for (int n = 2; n <= 20; ++n) {
    std::string wide;
    for (int i = 0; i < n; ++i) wide += i % 3 ? "\xc3\xa9" : "b";
    texts.push_back(wide);
  }
  // Characters of three and four bytes, whole and cut, behind ASCII and alone, and bytes that no
  // character has.
  for (const std::string& of : {std::string("\xe4\xb8\xad"), std::string("\xf0\x9f\x99\x82")})
    for (int n = 1; n <= 5; ++n) {
      std::string run;
      for (int i = 0; i < n; ++i) run += of;
      for (const std::string& text : {run, "a" + run, run + "a", run + ".", run + of.substr(0, 2),
                                      run + "\xc3\xa9", of.substr(1) + run, "a\xff" + run})
        texts.push_back(text);
    }
  const Vocabulary v(texts);
  for (const char* rule :
       {"[^.]{1,50}", "[^.]{45,50} \".\"", "[a-z]{3,60} [a-z.]{2,45}", "([ab]+ \" \"?){20,50}",
        "([ab]{1,3} \".\"){10,30}", "[^a]{1,9} \"a\"", "[^a]* \"a\"{1,3}",
        "[\xc3\xa9-\xe9\xbf\xbf]{2,7}", "[^\\x00-\\x7f]* \".\"?", "([^.]{1,4} \".\")*",
        "(\"\xe4\xb8\xad\"{1,3} \"a\"?){2,9}", "(.* \"b\"){3} .{2,9}",
        "\"a\" ([ab]{0,40} \" \"){0,2}"}) {
    INFO(rule);
    const auto g = compiled(v, std::string("root ::= ") + rule);
    std::mt19937 random(3);
    for (int walk = 0; walk < 5; ++walk) {
      grammar::Matcher m(g, {});
      for (int step = 0; step < 60; ++step) {
        check_mask(v, m);
        // Short tokens mostly, so that limits come near slowly.
        const std::string& text = texts[random() % (walk == 0 ? 4 : texts.size())];
        grammar::Matcher copy = m;
        if (copy.accept(text)) m = copy;
      }
    }
  }
}

TEST_CASE("grammars: half characters are allowed where a whole one can follow", "[grammar]") {
  const Vocabulary v({"\xe4", "\xe4\xb8", "\xb8", "\xad", "\xb8\xad", "\xe4\xb8\xad", "\xc3", "a"});
  const auto g = compiled(v, "root ::= \"\xe4\xb8\xad\" \"a\"");
  grammar::Matcher m(g, {});
  std::vector<uint32_t> mask(v.tokens->mask_words());
  const auto names = [&] {
    m.allowed(true, mask);
    std::string out;
    for (size_t t = 0; t < v.texts.size(); ++t)
      if (bit(mask, static_cast<int32_t>(t))) out += std::to_string(t) + " ";
    return out;
  };
  CHECK(names() == "2 3 7 ");
  REQUIRE(m.accept("\xe4"));
  CHECK(names() == "4 6 ");
  REQUIRE(m.accept("\xb8\xad"));
  CHECK(names() == "9 ");
  REQUIRE(m.accept("a"));
  CHECK(names() == "0 ");
}

TEST_CASE("grammars: white space and reasoning before the text", "[grammar]") {
  const Vocabulary v({" ", "\n", "yes", " yes", "no", "<think>", "</think>", "</think>\n\nyes",
                      "</", "think>", "hm ", "<", ">no"});
  const auto g = compiled(v, "root ::= \"yes\" | \"no\"", RIFFLE_GRAMMAR_GBNF,
                          {"<think>", "</think>", {}, {}, {}});
  CHECK(accepts(g, "yes"));
  CHECK_FALSE(begins(g, " yes"));
  CHECK_FALSE(begins(g, "<think>"));
  const grammar::Before space{true, ReasoningRule::NONE}, maybe{false, ReasoningRule::ALLOWED},
      begun{false, ReasoningRule::BEGUN};
  CHECK(accepts(g, " \n yes", space));
  CHECK_FALSE(accepts(g, "         yes", space));
  CHECK_FALSE(accepts(g, "<think>hm</think>yes", space));
  for (const char* text : {"yes", "no", "<think></think>no", "<think>hm </thi </think>\n\nyes"}) {
    INFO(text);
    CHECK(accepts(g, text, maybe));
  }
  for (const char* text :
       {" yes", "\n<think></think>no", "hm yes", "<think>yes", "<think>a</think>b", "<think>"}) {
    INFO(text);
    CHECK_FALSE(accepts(g, text, maybe));
  }
  CHECK(accepts(g, "yes, <think></think>yes", begun));
  CHECK_FALSE(accepts(g, "yes", begun));
  grammar::Matcher m(g, begun);
  REQUIRE(m.accept("hm </"));
  check_mask(v, m);
  REQUIRE(m.accept("think>"));
  check_mask(v, m);
}

TEST_CASE("grammars: white space in front is a part of the first token or the grammar's",
          "[grammar]") {
  const Vocabulary v({" ", "\n", "yes", " yes", "no", "\n\nno", " \n"});
  const auto names = [&](const char* gbnf, bool space) {
    const grammar::Constraint c(compiled(v, gbnf), space, ReasoningRule::NONE, true);
    grammar::Constraint copy = c;
    std::vector<uint32_t> mask(v.tokens->mask_words());
    copy.allowed(mask);
    std::string out;
    for (int32_t t = 0; t < static_cast<int32_t>(v.texts.size()); ++t) {
      grammar::Constraint next = c;
      const bool skips = next.skips_space(v.texts[t]);
      if (v.texts[t].empty() || !bit(mask, t)) continue;
      CHECK(next.take(t, v.texts[t]));
      out += std::to_string(t) + (skips ? "s " : " ");
    }
    return out;
  };
  CHECK(names("root ::= \"yes\" | \"no\"", false) == "4 6 ");
  CHECK(names("root ::= \"yes\" | \"no\"", true) == "4 5s 6 7s ");
  CHECK(names("root ::= \" yes\" | \"no\"", true) == "2 5 6 7s ");
  CHECK(names("root ::= [ \\n] \"yes\"", true) == "2 3 5 ");
}

TEST_CASE("grammars: reasoning between control tokens", "[grammar]") {
  // 0 ends an answer, 1 is another control token; then come the marks, which have no text either.
  const Vocabulary v({"", "", "yes", "no", "final", "other"});
  const auto constraint = [&](grammar::ReasoningTokens marks, ReasoningRule reasoning) {
    return grammar::Constraint(
        compiled(v, "root ::= \"yes\" | \"no\"", RIFFLE_GRAMMAR_GBNF, std::move(marks)), true,
        reasoning, true);
  };
  std::vector<uint32_t> mask(v.tokens->mask_words());
  const auto names = [&](grammar::Constraint& c) {
    CHECK(c.allowed(mask));
    std::string out;
    for (size_t t = 0; t < v.texts.size(); ++t)
      if (bit(mask, static_cast<int32_t>(t))) out += std::to_string(t) + " ";
    return out;
  };
  const grammar::ReasoningTokens simple{"", "", {2}, {3}, {3}};
  grammar::Constraint none = constraint(simple, ReasoningRule::NONE);
  CHECK(names(none) == "4 5 ");
  grammar::Constraint maybe = constraint(simple, ReasoningRule::ALLOWED);
  CHECK(names(maybe) == "2 4 5 ");
  CHECK(maybe.take(2, ""));
  CHECK(names(maybe) == "1 2 3 4 5 6 7 ");  // anything but an end
  CHECK(maybe.take(5, "no"));
  CHECK(maybe.take(3, ""));
  CHECK(names(maybe) == "4 5 ");
  CHECK(maybe.take(4, "yes"));
  CHECK(names(maybe) == "0 ");
  grammar::Constraint answered = constraint(simple, ReasoningRule::ALLOWED);
  CHECK(answered.take(4, "yes"));
  CHECK(names(answered) == "0 ");
  // Without reasoning no white space stands before the text; behind it some may.
  const Vocabulary spaced({"", "", "\n", "yes"});
  std::vector<uint32_t> words(spaced.tokens->mask_words());
  grammar::Constraint before(compiled(spaced, "root ::= \"yes\"", RIFFLE_GRAMMAR_GBNF, simple),
                             true, ReasoningRule::ALLOWED, true);
  CHECK(before.allowed(words));
  CHECK_FALSE(bit(words, 4));
  for (const int32_t token : {2, 4, 3}) CHECK(before.take(token, spaced.texts[token]));
  CHECK(before.allowed(words));
  CHECK((bit(words, 4) && bit(words, 5)));
  CHECK(before.take(4, "\n"));
  CHECK(before.take(5, "yes"));
  CHECK(before.complete());
  // Headers: <1> final <2> begins the answer, <1> other <2> does not.
  const grammar::ReasoningTokens headers{"", "", {1, 7, 2}, {3, 1, 6, 2}, {1, 6, 2}};
  grammar::Constraint header = constraint(headers, ReasoningRule::ALLOWED);
  for (const int32_t token : {1, 7, 2, 5, 3, 1, 6}) CHECK(header.take(token, v.texts[token]));
  CHECK(names(header) == "1 2 3 4 5 6 7 ");
  CHECK(header.take(2, ""));
  CHECK(names(header) == "4 5 ");
  // The prompt ends with <1> prompt; "other" <2> begins reasoning and "final" <2> the answer.
  const grammar::ReasoningTokens prompted{"", "", {7, 2}, {3, 1, 5, 6, 2}, {1, 5, 6, 2}, 2};
  grammar::Constraint direct = constraint(prompted, ReasoningRule::ALLOWED);
  for (const int32_t token : {6, 2}) CHECK(direct.take(token, v.texts[token]));
  CHECK(names(direct) == "4 5 ");
  grammar::Constraint reasoned = constraint(prompted, ReasoningRule::ALLOWED);
  for (const int32_t token : {7, 2, 4, 6, 2}) CHECK(reasoned.take(token, v.texts[token]));
  CHECK(names(reasoned) == "1 2 3 4 5 6 7 ");
  for (const int32_t token : {3, 1, 5, 6, 2}) CHECK(reasoned.take(token, v.texts[token]));
  CHECK(names(reasoned) == "4 5 ");
  grammar::Constraint opened = constraint(prompted, ReasoningRule::BEGUN);
  for (const int32_t token : {6, 2}) CHECK(opened.take(token, v.texts[token]));
  CHECK(names(opened) == "1 2 3 4 5 6 7 ");
}

TEST_CASE("grammars: a grammar that grows beyond its cache goes on, from several threads",
          "[grammar]") {
  // Each count of each letter is a state of its own.
  const Vocabulary v = bytes();
  grammar::Expressions e;
  const uint32_t root = grammar::read_gbnf(
      "root ::= x{0,1000000} \"!\"\n"
      "x ::= [a-m]{100000,200000} \",\" | [n-z]{0,100000} \";\"",
      &e);
  const auto g = std::make_shared<const grammar::Grammar>(
      std::move(e), root, v.tokens, grammar::ReasoningTokens(), size_t{1} << 18);
  std::vector<std::thread> threads;
  std::vector<int> ok(3, 0);
  for (size_t i = 0; i < ok.size(); ++i)
    threads.emplace_back([&, i] {
      grammar::Matcher m(g, {});
      std::vector<uint32_t> mask(v.tokens->mask_words());
      bool good = true;
      for (int n = 0; n < (all_rounds() ? 60000 : 20000); ++n) {
        good = good &&
               m.accept(std::string(1, static_cast<char>('n' + (n + static_cast<int>(i)) % 13)));
        if (n % 50 == 0)
          good = good && m.allowed(true, mask) && bit(mask, 2 + ';') && !bit(mask, 2 + 'a') &&
                 !bit(mask, 2 + '!');
      }
      good = good && m.accept(";!") && m.complete();
      ok[i] = good;
    });
  for (std::thread& t : threads) t.join();
  CHECK(ok == std::vector<int>(3, 1));
}
