package explorer

// Plant is a bug on purpose.
type Plant uint8

const (
	NoPlant        Plant = iota
	SealIgnored          // a place decides although the key has left it
	FloorDropped         // a key is adopted without the counts from where it was
	SealForgotten        // a seal answers, and is not kept
	RefundTwice          // a refund is carried out twice
	ClockTrusted         // a lease takes an old reading of the server's clock for a new one
	SinceReply           // a lease counts its time from the reply, not from the request
	SleepUnnoticed       // a lease does not count the time for which its host slept
	ReturnRepeated       // a return whose reply was lost is sent again
	ResetForgotten       // what was charged before a reset can be given back after it
	LivesJoined          // the arrival of one life of a bucket is joined with the credit of another
)
