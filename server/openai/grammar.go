package openai

// jsonGrammar is GBNF for a JSON object (RFC 8259). Whitespace is bounded, so that a model that has nothing left to say
// cannot emit blanks until its budget is gone.
const jsonGrammar = `root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( member ( "," ws member )* )? "}" ws
member ::= string ":" ws value
array ::= "[" ws ( value ( "," ws value )* )? "]" ws
string ::= "\"" char* "\"" ws
char ::= [^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} )
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,3} )? ws
ws ::= | " " | "\n" [ \t]{0,20}
`
