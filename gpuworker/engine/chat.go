package engine

// ChatStop ends a turn in the template of [Chat]. A server that renders a chat
// adds it to the request's stop sequences.
const ChatStop = "\n"

// Message is one turn of a chat.
type Message struct {
	Role    string
	Content string
}

// Chat renders a conversation in the template of the ref engine: a line
// "role: content" for each message, and "assistant:" for the answer to follow.
func Chat(messages []Message) []byte {
	var b []byte
	for _, m := range messages {
		b = append(b, m.Role...)
		b = append(b, ": "...)
		b = append(b, m.Content...)
		b = append(b, '\n')
	}
	return append(b, "assistant:"...)
}
