// The protocol between a test and a Node.js client script: see job.py in this folder.
const fs = require('fs')

const job = JSON.parse(fs.readFileSync(0))
const started = Date.now()

function say (event, facts = {}) {
  console.log(JSON.stringify({ event, at_ms: Date.now() - started, ...facts }))
}

function fail (error) {
  say('error', { text: String(error) })
}

// Prints the delivery, and returns what to do with it.
function received (body, attempts) {
  say('received', { body: body.toString(), attempts })
  return (attempts === 1 && job.plans[body.toString()]) || 'finish'
}

// Touches for `hold_ms`, then finishes.
function hold (message) {
  const apart = Math.floor(job.msg_timeout_ms / 3)
  const step = (times) => {
    if (times === 0) return message.finish()
    message.touch()
    setTimeout(() => step(times - 1), apart)
  }
  step(Math.floor(job.hold_ms / apart))
}

const soon = () => new Promise((resolve) => setTimeout(resolve, 200))

process.on('uncaughtException', (error) => {
  fail(error)
  console.error(error)
  process.exit(1)
})

module.exports = { job, say, fail, received, hold, soon }
