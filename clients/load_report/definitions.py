# SPDX-License-Identifier: Apache-2.0
"""The definitions of a report's words, printed with each report.

They equal those of vLLM's benchmark where it has the word.
"""

DEFINITIONS = {
    "send": "In an open loop the moment when a request was due, whether or not the client was late: a server that "
    "stalls cannot make its own load lighter or hide the wait (coordinated omission). In a closed loop the moment when "
    "it was sent.",
    "TTFT": "Time to first token: the first chunk with a token minus send.",
    "ITL": "Inter-token latency: the gap before every later chunk with tokens, pooled over requests. A chunk may hold "
    "several tokens.",
    "TPOT": "Time per output token, of a request: (E2E - TTFT) / (output tokens - 1); undefined below two tokens.",
    "E2E": "End to end: the last chunk minus send.",
    "ISL, OSL": "Prompt and output tokens of a request, as the server counted them.",
    "measured": "Requests that were due in the steady part of the run: from where the number in flight first reaches "
    "its later mean, and as many have ended as are in flight at a time, to where requests stop coming; in a closed "
    "loop a whole number of rounds of all users; in a load that was stopped, up to where the oldest request was due "
    "that had not ended. Where that leaves too few, the whole run, marked as not steady. Warm-up requests were sent "
    "before the run and are nowhere in it.",
    "throughput": "Tokens that came in the measured part, a second of it, and requests that ended well: each counts by "
    "the share of its tokens that came in the measured part (one without a token where it ended), so that where all "
    "end well, requests/s times OSL is output tokens/s. Tokens of requests that ended badly are counted as tokens.",
    "goodput": "Requests that ended well and met every target, counted as for throughput, a second. A refused or "
    "failed request is not good; one without a token or with one has no TPOT to miss.",
    "interval": "95 %, from stretches of the measured part, because requests that are near in time are alike. Of "
    "latencies by the block bootstrap, which draws twentieths of the requests again; of rates by Student's t over at "
    "most twenty stretches that are twice as long as a mean request, or longer. None below 40 requests that ended "
    "well; of rates none where there are not five such stretches.",
    "client": "CPU time of the busiest process of the load client over wall time. Above 70 % of a core, or with one "
    "request in a hundred more than 10 ms late, the run is marked as bound by the client.",
    "knee": "Of runs at different loads the one with the greatest power, throughput over mean E2E (Kleinrock 1979).",
    "batch occupancy": "Sequences in the batch, mean over engine steps, over the most that the engine takes.",
    "prefill, decode": "An engine step in which any request had no token yet is a prefill step; all others are decode.",
    "MBU": "Model bandwidth utilisation: (weight bytes + KV cache bytes read in a step) / time of a step / peak "
    "bandwidth, over all engine steps. Whether a kernel runs at all (GPU utilisation) is another thing.",
    "MFU": "Model FLOPs utilisation: operations of the tokens computed / time of the steps / peak operations a second.",
}
